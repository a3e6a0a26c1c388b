"""TOML presets: `rljax list` names them, `rljax.load_config(name)` reads one."""
