"""DECIDES: pure functions of what is known; no clock, no network, no tensor. Imports `protocol`."""
