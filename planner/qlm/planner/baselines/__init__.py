"""Baseline planning methods: each orders and places groups as some server does."""
