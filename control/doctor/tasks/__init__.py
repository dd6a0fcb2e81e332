"""Tasks of playbooks on the control node: `control: {do: doctor.NAME, ...}`."""
