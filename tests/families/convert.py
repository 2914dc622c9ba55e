"""convert - the public converter, told the name of the pre-tokenizer.

    convert.py LLAMA_CPP PRE DIRECTORY --outfile OUT.gguf --outtype f32 ...

It knows pre-tokenizers by a hash of what the real vocabulary says; a vocabulary of 280 tokens has another.
"""

import sys

folder, pre = sys.argv[1:3]
sys.argv = [f"{folder}/convert_hf_to_gguf.py", *sys.argv[3:]]
sys.path.insert(0, folder)
import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402

TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
convert_hf_to_gguf.main()
