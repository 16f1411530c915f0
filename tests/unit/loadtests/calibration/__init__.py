"""Calibration of the emulator."""
