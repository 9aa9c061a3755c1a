"""mini-swe-agent with an instant model and an instant environment; one JSON request a line, one JSON answer a line.

A request plays `rollouts` episodes on `workers` threads. The agent is mini-swe-agent's DefaultAgent, unchanged. The model is
one of
* instant: replies from memory; its actions are found by mini-swe-agent's own parser;
* tokens: the same, and the whole history is rendered and tokenised each turn, as training on its turns needs;
* http: mini-swe-agent's LitellmTextbasedModel against a server that answers at once.

The added time of a turn is the time from a reply to the next question of the same episode. For `http` the server measures it.
"""

import importlib.metadata
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import litellm
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel, LitellmTextbasedModelConfig
from minisweagent.models.utils.actions_text import parse_regex_actions


class InstantEnvironment(LocalEnvironment):
    """Commands end at once, with the output that ours give."""

    def __init__(self, observation, submit, **settings):
        super().__init__(**settings)
        self.observation, self.submit = observation, submit

    def execute(self, action, cwd="", *, timeout=None):
        is_submitted = action["command"] == self.submit
        text = self.submit.removeprefix("echo ") + "\n" if is_submitted else self.observation
        output = {"output": text, "returncode": 0, "exception_info": ""}
        self._check_finished(output)
        return output


class InstantModel(LitellmTextbasedModel):
    """Replies from memory. Only the question to a server is left out."""

    def __init__(self, replies, tokenizer, gaps, **settings):
        self.config = LitellmTextbasedModelConfig(**settings)
        self.replies, self.tokenizer, self.gaps = replies, tokenizer, gaps
        self.turn, self.answered = 0, None

    def query(self, messages, **kwargs):
        prepared = self._prepare_messages_for_api(messages)
        if self.tokenizer is not None:
            text = self.tokenizer.apply_chat_template(prepared, add_generation_prompt=True, tokenize=False)
            self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self.answered is not None:
            self.gaps.append(time.perf_counter() - self.answered)
        content = self.replies[self.turn]
        self.turn += 1
        self.answered = time.perf_counter()
        actions = parse_regex_actions(
            content,
            action_regex=self.config.action_regex,
            format_error_template=self.config.format_error_template,
            template_kwargs={"finish_reason": "stop"},
        )
        return {"role": "assistant", "content": content, "extra": {"actions": actions, "cost": 0.0}}


def play(request, settings, tokenizer, number, gaps):
    model_settings = {"model_name": "openai/instant", "cost_tracking": "ignore_errors", **settings["model"]}
    if request["model"] == "http":
        call = {"api_base": request["url"], "api_key": "none", "user": f"{request['round']}-{number}"}
        model = LitellmTextbasedModel(model_kwargs=call, **model_settings)
    else:
        model = InstantModel(request["replies"], tokenizer, gaps, **model_settings)
    environment = InstantEnvironment(request["observation"], request["submit"], cwd="/testbed", **settings["environment"])
    agent = DefaultAgent(model, environment, **settings["agent"])
    end = agent.run(request["task"])
    assert end["exit_status"] == "Submitted", end
    return agent.n_calls


def measure(request):
    with open(request["agent"]) as file:
        settings = yaml.safe_load(file)
    settings["agent"]["step_limit"] = len(request["replies"])
    tokenizer = None
    if request["model"] == "tokens":
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(tokenizer_file=request["tokenizer"])
        with open(request["template"]) as file:
            tokenizer.chat_template = file.read()
    gaps = []
    with ThreadPoolExecutor(request["workers"]) as pool:
        began, processor_began = time.perf_counter(), time.process_time()
        played = [pool.submit(play, request, settings, tokenizer, n, gaps) for n in range(request["rollouts"])]
        turns = sum(one.result() for one in played)
        wall, processor = time.perf_counter() - began, time.process_time() - processor_began
    return {"turns": turns, "wall_s": wall, "processor_s": processor, "gaps_s": gaps}


def main():
    litellm.suppress_debug_info = True  # it would print three lines a turn
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries talk
    print(json.dumps({"name": f"mini-swe-agent {importlib.metadata.version('mini-swe-agent')}"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
