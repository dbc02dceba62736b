"""The one logger of dibs."""

import logging

log = logging.getLogger("dibs")
