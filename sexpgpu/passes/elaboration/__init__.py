"""Elaboration, file by file: values, places, the compiler of forms, the tables of operations, runs."""
