"""The parts of the measurement, each of which yields its figures."""
