"""Tiny Hugging Face models with one of each task head, and batches for them. Random weights, no hub."""

import torch
from transformers import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetLMHeadModel,
)

ROWS, LENGTH, VOCAB = 4, 6, 40


def bert_config(**changes):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertConfig(**(sizes | {"vocab_size": VOCAB, "max_position_embeddings": 16, "num_labels": 3} | changes))


def bart_config(**changes):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16}
    return BartConfig(**(sizes | heads | {"vocab_size": VOCAB, "num_labels": 3} | changes))


def t5_config():
    return T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=VOCAB, decoder_start_token_id=0)


def gpt2_config():
    return GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=VOCAB, n_positions=16)


def llama_config():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(**sizes, vocab_size=VOCAB, max_position_embeddings=16)


def xlnet_config():
    return XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=24, vocab_size=VOCAB)


# name -> (model, task kind); the labels come with `batch_for`
HEADS = {
    "bert-classification": (lambda: BertForSequenceClassification(bert_config()), "classification"),
    "bert-regression": (lambda: BertForSequenceClassification(bert_config(num_labels=1)), "regression"),
    "bert-multilabel": (lambda: BertForSequenceClassification(bert_config()), "multilabel"),
    "bert-token": (lambda: BertForTokenClassification(bert_config()), "token"),
    "bert-masked-lm": (lambda: BertForMaskedLM(bert_config()), "token"),
    "bert-choice": (lambda: BertForMultipleChoice(bert_config()), "classification"),
    "bart-classification": (lambda: BartForSequenceClassification(bart_config()), "classification"),
    "bart-seq2seq": (lambda: BartForConditionalGeneration(bart_config()), "seq2seq"),
    "bart-decoder": (lambda: BartForCausalLM(bart_config()), "token"),
    "t5-seq2seq": (lambda: T5ForConditionalGeneration(t5_config()), "seq2seq"),
    "gpt2-lm": (lambda: GPT2LMHeadModel(gpt2_config()), "causal-lm"),
    "llama-lm": (lambda: LlamaForCausalLM(llama_config()), "causal-lm"),
    "xlnet-lm": (lambda: XLNetLMHeadModel(xlnet_config()), "token"),
}


def make(name):
    torch.manual_seed(0)
    return HEADS[name][0]()


def batch_for(name, rows=ROWS):
    """Right-padded inputs, and labels of the task; token labels are -100 on the padding and in one more place."""
    torch.manual_seed(1)
    ids = torch.randint(3, VOCAB - 2, (rows, LENGTH))
    attention = torch.ones_like(ids)
    attention[0, -2:] = 0
    kind = HEADS[name][1]
    if name == "bert-choice":
        ids, attention = ids.unsqueeze(1).repeat(1, 2, 1), attention.unsqueeze(1).repeat(1, 2, 1)
        ids[:, 1] = ids[:, 1].flip(-1)
    if name == "bart-classification":
        ids[:, -1] = 2  # its head reads the end-of-sentence token, of which each row needs equally many
        attention[:] = 1
    if kind == "classification":
        labels = torch.arange(rows) % 2
    elif kind == "regression":
        labels = torch.randn(rows)
    elif kind == "multilabel":
        labels = (torch.rand(rows, 3) > 0.5).float()
    else:
        labels = torch.randint(0, 3 if name == "bert-token" else VOCAB - 2, (rows, LENGTH))
        labels[0, -2:] = -100
        labels[1, 2] = -100
    return {"input_ids": ids, "attention_mask": attention, "labels": labels}
