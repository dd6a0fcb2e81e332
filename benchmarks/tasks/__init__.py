"""Tasks that playbooks run on the control node: `control: {do: benchmarks.NAME, ...}`."""
