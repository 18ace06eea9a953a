"""Repetition of the program's calls to measure them, without visible effects on the program."""
