"""Chat and completion, streaming and not, through the official client.

client.py BASE_URL MODEL prints one JSON object with what came back.
"""

import json
import sys

import openai


def main() -> None:
    base, model = sys.argv[1:3]
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "What is a prime number? Answer in one sentence."}]
    prompt = "The capital of France is"
    out = {"models": [m.id for m in client.models.list().data]}

    chat = client.chat.completions.create(model=model, messages=messages, max_tokens=16, temperature=0)
    out["chat"] = chat.choices[0].message.content
    out["chat_usage"] = [chat.usage.prompt_tokens, chat.usage.completion_tokens]

    text, usage = "", None
    for event in client.chat.completions.create(
        model=model, messages=messages, max_tokens=16, temperature=0, stream=True, stream_options={"include_usage": True}
    ):
        if event.choices:
            text += event.choices[0].delta.content or ""
        if event.usage:
            usage = [event.usage.prompt_tokens, event.usage.completion_tokens]
    out["chat_stream"], out["chat_stream_usage"] = text, usage

    done = client.completions.create(model=model, prompt=prompt, max_tokens=16, temperature=0, logprobs=1)
    out["completion"] = done.choices[0].text
    out["logprobs"] = len(done.choices[0].logprobs.token_logprobs)
    out["completion_stream"] = "".join(
        event.choices[0].text
        for event in client.completions.create(model=model, prompt=prompt, max_tokens=16, temperature=0, stream=True)
        if event.choices
    )
    try:
        client.completions.create(model="no such model", prompt=prompt)
    except openai.NotFoundError as e:
        out["unknown_model"] = e.status_code
    try:
        client.completions.create(model=model, prompt=prompt, temperature=-1)
    except openai.BadRequestError as e:
        out["bad_value"] = e.body.get("param")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
