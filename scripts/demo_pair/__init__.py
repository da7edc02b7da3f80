"""Steps of `train_demo_pair.py`: corpus, model, training, evaluation, export, card."""
