"""The rules of PROTOCOL.md, a file a rule: functions from frames to frames."""
