"""GREETS: the commands; the only place where wire, storage and model meet the trainer."""
