"""Estimators, tables, figures and reports from stored records; runs without SGLang or a GPU."""
