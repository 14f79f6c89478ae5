"""What Eagleray is called in Ray Serve."""

from typing import Final

APPLICATION: Final = "eagleray"
INGRESS: Final = "Ingress"
