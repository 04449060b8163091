"""The rules that hold on every engine, on scripts, ranks and collectives."""
