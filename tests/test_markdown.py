"""One Markdown table, whatever its cells hold."""

from __future__ import annotations

from specx.records.markdown import markdown_table


def test_a_table_has_a_line_per_row_and_its_figures_to_the_right() -> None:
    rows = [["", "arm", "tok/s"], ["a", "b", "1"], ["c", "", "2"]]
    assert markdown_table(rows, figures=["tok/s"]) == (
        "|  | arm | tok/s |\n| --- | --- | ---: |\n| a | b | 1 |\n| c |  | 2 |\n"
    )
    assert markdown_table(rows[:1]) == "|  | arm | tok/s |\n| --- | --- | --- |\n"


def test_a_cell_ends_neither_its_column_nor_the_table() -> None:
    found = markdown_table([["KL(A||B)"], ["two\nlines  and\ttabs"]])
    assert found == "| KL(A\\|\\|B) |\n| --- |\n| two lines and tabs |\n"
