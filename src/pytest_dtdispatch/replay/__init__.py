"""Calls of the program, repeated to measure them, unnoticed by the program."""
