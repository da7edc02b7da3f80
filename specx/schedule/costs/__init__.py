"""What a pass costs by its width: measured, tabulated, corrected by live times."""
