"""One kernel as data: its parameters, rules, bindings, workgroup memory and dispatch."""
