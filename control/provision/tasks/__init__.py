"""Tasks of playbooks on the control node: `control: {do: provision.NAME, ...}`."""
