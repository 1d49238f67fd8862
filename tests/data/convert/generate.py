"""Writes messages.json and responses.json: bodies of our own with the chat that vLLM makes of them.

    python tests/data/convert/generate.py
"""

import os

import messages
import responses
from oracle import case, messages_to_chat, responses_to_chat, write

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    for module, convert in ((messages, messages_to_chat), (responses, responses_to_chat)):
        cases = [case(convert, *made) for made in module.cases()]
        write(cases, os.path.join(here, f"{module.__name__}.json"))
