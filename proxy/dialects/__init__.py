"""The wire shapes that clients speak, as typed views over the raw JSON."""
