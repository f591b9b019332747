"""Lets torchtitan 0.3.0 run its pipelining function on the CPU. For tests; to be imported before torchtitan.

torchtitan takes "cuda" where torch sees no accelerator, and asks that module for a device. Nothing else has to change.
"""

import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"
