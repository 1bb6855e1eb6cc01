"""The explorer: a local page to move sliders on, a thin door with no science inside."""
