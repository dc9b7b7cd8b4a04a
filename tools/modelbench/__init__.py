"""What ``tools/bench_models.py`` measures whole models with."""
