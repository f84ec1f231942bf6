"""Forecasts for people and admission: plans as agents serve them, corrected by earlier outcomes."""
