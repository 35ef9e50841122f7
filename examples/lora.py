"""LoRA adapters of peft on a compiled BERT: the adapters learn, the model stays as it is."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import smelt

torch.manual_seed(0)
config = BertConfig(
    vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=64,
)  # fmt: skip
model = get_peft_model(BertForSequenceClassification(config), LoraConfig(target_modules=["query", "value"], r=4))
frozen = model.base_model.model.bert.embeddings.word_embeddings.weight.clone()
compiled = smelt.compile(model)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
sentences = ["for x in range(3): pass", "to be or not to be", "if a and b: return None", "the rest is silence."]
tokens = torch.tensor([list(sentence.ljust(24).encode()) for sentence in sentences])
labels = torch.tensor([0, 1, 0, 1])
for _ in range(20):
    loss = compiled(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f} with {smelt.stats()['graphs']} graphs")
assert torch.equal(frozen, model.base_model.model.bert.embeddings.word_embeddings.weight)
