"""Tasks of playbooks on the control node: `control: {do: datasets.NAME, ...}`."""
