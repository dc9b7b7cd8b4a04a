"""The hook: Inductor asks, tables and models answer. Only this package touches ``torch._inductor``."""
