"""Training and generation with transformers on one thread; one JSON request a line, one JSON answer a line.

* load: reads the model that our side has written, in f32;
* logits: those of one sequence;
* train: one step: forward, policy-gradient loss on the log-probability of every token, backward, clipping, AdamW;
* generate: `generate` with sampling for a batch of prompts of equal length, so that no padding is computed.
"""

import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)


class Peer:
    def load(self, request):
        path = request["model"]
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, betas=(0.9, 0.98), weight_decay=0.1)
        return {}

    def logits(self, request):
        with torch.no_grad():
            logits = self.model(torch.tensor([request["ids"]]), use_cache=False).logits
        return {"logits": logits.flatten().tolist()}

    def train(self, request):
        shape = (request["sequences"], request["length"])
        ids = torch.randint(3, self.model.config.vocab_size, shape)
        targets = torch.randint(3, self.model.config.vocab_size, shape)
        advantages = torch.tensor([1.0, -1.0]).repeat(shape[0] // 2)

        def step():
            logits = self.model(ids, use_cache=False).logits
            logprobs = torch.log_softmax(logits, -1).gather(2, targets[:, :, None])[:, :, 0]
            loss = -(advantages[:, None] * logprobs).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()

        return measured(step)

    def generate(self, request):
        prompts = torch.randint(3, self.model.config.vocab_size, (request["batch"], request["prompt"]))
        new_tokens = request["new_tokens"]

        def step():
            with torch.no_grad():
                made = self.model.generate(
                    prompts,
                    attention_mask=torch.ones_like(prompts),
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=new_tokens,
                    min_new_tokens=new_tokens,
                    pad_token_id=0,
                )
            assert made.shape[1] == request["prompt"] + new_tokens

        return measured(step)


def measured(work):
    began, processor_began = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - began, "processor_s": time.process_time() - processor_began}


def main():
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries talk
    name = f"transformers {transformers.__version__}, torch {torch.__version__}"
    print(json.dumps({"name": name}), file=answers, flush=True)
    peer = Peer()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(peer, request["do"])(request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
