"""Tasks of playbooks on the control node: `control: {do: serving.NAME, ...}`."""
