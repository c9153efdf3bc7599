"""Compiled models: `compile`, `PhysicalModel`, and the parts of one.

- `compile` and `physical_model`: from a logical model and a backend to a model that runs;
- `program`, `loading`: the generated functions of one specialization, and how their source is loaded;
- `parameters`, `parameter_patterns`, `state`: what a model keeps between calls;
- `arguments`, `donation`: what a call takes;
- `compile_stats`, `memory_plan`, `stages`, `verbose`: reports;
- `tool_methods`: the functions of `mithril.tools` as methods of a model.

Backends import these modules, and these import backends: this package imports none of them by itself.
"""
