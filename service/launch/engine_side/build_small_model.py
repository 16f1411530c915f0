"""Build the small language model that the CPU engine serves.

A script, run by the *engine's* Python (``python build_small_model.py OUT_DIR [LAYERS]``); nothing in ``service``
imports it, and its imports live inside the functions because Sluice's own environment has neither torch nor tokenizers.

The result is a directory vLLM can serve: a byte-level BPE tokenizer of 2,048 entries, a Qwen3 with random weights from
a fixed seed (two layers, or as many as asked for: each makes a step longer, and little else), and a ChatML template
that knows tools and partial assistant messages. It speaks nonsense, which is all a test of plumbing, metrics and
scheduling asks of it; the same seed gives the same weights, so greedy output agrees between two workers.

Left alone it never says a special token, a word of the protocol or half a character: one dimension of its hidden state
is a constant, and those tokens weigh it negatively, which amounts to a bias. So every token is visible text, and a
reply ends where ``max_tokens`` says, whatever a load tool expects. Forced output (``structured_outputs``) can still
say anything.

The tokenizer is trained on the Python language reference, which CPython carries in ``pydoc_data.topics``: English and
code of fair size, on every machine, the same for one Python version. That version is part of the cache key.
"""

# mypy: ignore-errors
# (torch, tokenizers and transformers are installed in the engine's environment only)

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

VOCABULARY_SIZE = 2048
WEIGHT_SEED = 20260214
MAX_POSITIONS = 8192
DEFAULT_LAYERS = 2

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
# Words of the protocol rather than of the text: single tokens, yet visible in decoded output, as parsers need them.
PROTOCOL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHAT_TEMPLATE = r"""
{%- macro text_of(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is iterable -%}
    {%- for part in content -%}
      {%- if part.text is defined -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
  {{- '<|im_start|>system\n' -}}
  {%- if messages and messages[0].role == 'system' -%}{{- text_of(messages[0].content) + '\n\n' -}}{%- endif -%}
  {{- 'Tools you may call, one JSON schema a line:\n' -}}
  {%- for tool in tools -%}{{- tool | tojson + '\n' -}}{%- endfor -%}
  {{- 'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'system' and loop.first and tools -%}{%- continue -%}{%- endif -%}
  {%- if message.role == 'tool' -%}
    {{- '<|im_start|>user\n<tool_response>' + text_of(message.content) + '</tool_response><|im_end|>\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\n' -}}
    {{- text_of(message.content) -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set function = call.function or call -%}
      {{- '<tool_call>{"name": ' + function.name | tojson + ', "arguments": ' -}}
      {{- function.arguments if function.arguments is string else function.arguments | tojson -}}
      {{- '}</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""".strip()


def training_text() -> list[str]:
    """Return the Python language reference as paragraphs, in a fixed order."""
    from pydoc_data.topics import topics

    return [paragraph for name in sorted(topics) for paragraph in topics[name].split("\n\n")]


def build_tokenizer(out_dir: Path) -> "PreTrainedTokenizerFast":
    """Train, save and return the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(PROTOCOL_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(training_text(), trainer)
    bpe.add_tokens(list(PROTOCOL_TOKENS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCABULARY_SIZE:
        raise SystemExit(f"tokenizer has {len(tokenizer)} entries, wanted {VOCABULARY_SIZE}")
    tokenizer.save_pretrained(out_dir)
    return tokenizer


def is_plain(text: str) -> bool:
    """Say whether a token is printable ASCII, line ends included."""
    return bool(text) and all(" " <= character <= "~" or character == "\n" for character in text)


def list_unsaid_ids(tokenizer: "PreTrainedTokenizerFast") -> list[int]:
    """Return the ids the model is not to say of its own accord."""
    words = {tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL_TOKENS, *PROTOCOL_TOKENS)}
    return [number for number in range(VOCABULARY_SIZE) if number in words or not is_plain(tokenizer.decode([number]))]


def silence(model: "Qwen3ForCausalLM", unsaid_ids: list[int]) -> None:
    """Make the model score these tokens about 30 below all others, whatever it reads.

    Dimension 0 of every embedding is large, and no layer writes to it; after the last norm it is about 6.
    """
    import torch

    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0.5
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[unsaid_ids, 0] = -5


def build_weights(out_dir: Path, tokenizer: "PreTrainedTokenizerFast", layers: int) -> int:
    """Save a Qwen3 with random weights; return its number of parameters."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(WEIGHT_SEED)
    end_of_turn_id, end_of_text_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM's CPU attention accepts: 16 starts, then kills the engine at first use
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,  # tied, it repeats the last token of the prompt for ever
        bos_token_id=None,
        eos_token_id=end_of_turn_id,
        pad_token_id=end_of_text_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    silence(model, list_unsaid_ids(tokenizer))
    model.generation_config = GenerationConfig(eos_token_id=end_of_turn_id, pad_token_id=end_of_text_id)
    model.save_pretrained(out_dir)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Build into the directory given on the command line, or into nothing at all if a step fails."""
    out_dir = Path(sys.argv[1])
    out_dir.mkdir(parents=True, exist_ok=True)
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT_LAYERS
    parameters = build_weights(out_dir, build_tokenizer(out_dir), layers)
    sys.stdout.write(json.dumps({"vocabulary": VOCABULARY_SIZE, "parameters": parameters}) + "\n")


if __name__ == "__main__":
    main()
