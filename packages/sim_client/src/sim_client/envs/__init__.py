"""Simulator adapters behind one small interface."""
