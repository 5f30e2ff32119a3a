"""The rules of docs/protocol/rules.md, a file a rule: functions from frames to frames."""
