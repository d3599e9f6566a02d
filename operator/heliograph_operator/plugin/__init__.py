"""The command ``kubectl heliograph``: what people on call ask first, in the words of the resources' status."""
