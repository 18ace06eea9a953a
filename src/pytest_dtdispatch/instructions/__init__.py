"""Instruction counts and profiles."""
