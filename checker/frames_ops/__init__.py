"""How frames are matched and compared: columns, no rule."""
