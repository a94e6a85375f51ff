"""The app for programs: endpoints by gradio_client and by MCP, bad input, and twenty visitors at once."""

import ast
import asyncio
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from rmdm.gallery import examples
from rmdm.tasks import get_task
from tests.app_server import ROOT, Server, start

EASY = next(iter(examples("sudoku-9x9").values()))
MARKUP = "<img src=x onerror=alert(1)>${alert(1)}`{{value}}"


@pytest.fixture(scope="module")
def server() -> Server:
    return start()


def connect(server: Server) -> Client:
    """Patient, since a machine that is busy otherwise is no failure of the app."""
    return Client(server.url, verbose=False, httpx_kwargs={"timeout": 120})


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return connect(server)


def test_solve_sudoku(server: Server, client: Client):
    answer = client.predict(puzzle=EASY, api_name="/solve_sudoku")
    assert set(answer) == {"solution", "valid", "forward_passes", "seconds"}
    assert len(answer["solution"]) == 81
    assert all(clue in ("0", digit) for clue, digit in zip(EASY, answer["solution"], strict=True))
    assert answer["forward_passes"] == 10 * 32  # as the task's steps and the model's loops say
    if "sudoku-9x9" in server.trained:
        assert answer["valid"]
        task = get_task("sudoku-9x9")
        assert task.check(task.encode(EASY), task.encode(answer["solution"])).valid
    with_frames = client.predict(puzzle=EASY, steps=2, loops="auto", trajectory=True, api_name="/solve_sudoku")
    assert with_frames["trajectory"]["frames"][0]["step"] == 1


def test_other_tasks(client: Client):
    asked = {"15, 44 79": "79,44,15=50", "15,44,79,3": "79,44,15,3=50", "15,44,79,3,8": "79,44,15,8,3=50"}
    for numbers, prompt in asked.items():  # one model for all, which sees the largest number first
        answer = client.predict(numbers=numbers, target=50, steps=4, loops=2, api_name="/solve_countdown")
        assert answer["solution"].startswith(prompt + "\n")
        assert answer["forward_passes"] == 8
    answer = client.predict(text="the cat s_t on 2 mats", steps=4, loops=2, seed=1, api_name="/continue_text")
    assert len(answer["solution"]) == 256
    assert answer["solution"].startswith("the cat s")
    again = client.predict(text="the cat s_t on 2 mats", steps=4, loops=2, seed=1, api_name="/continue_text")
    assert again["solution"] == answer["solution"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"puzzle": "123"}, "the puzzle has 3 cells"),
        ({"puzzle": "55" + "0" * 79}, "two 5s in row 1"),
        ({"puzzle": MARKUP}, "cells"),
        ({"puzzle": EASY, "checkpoint": "../../etc/passwd"}, "there is no checkpoint"),
        ({"puzzle": EASY, "checkpoint": "owner/model"}, "there is no checkpoint"),
        ({"puzzle": EASY, "checkpoint": MARKUP}, "there is no checkpoint"),
        ({"puzzle": EASY, "steps": 256, "loops": 64}, "passes"),
        ({"puzzle": EASY, "loops": MARKUP}, "is not a whole number"),
        ({"puzzle": EASY, "order": MARKUP}, "is unknown"),
        ({"puzzle": EASY, "backend": "/tmp/model.onnx"}, "has no backend"),
    ],
)
def test_bad_input_is_answered(client: Client, arguments: dict, message: str):
    with pytest.raises(AppError, match=message):
        client.predict(**arguments, api_name="/solve_sudoku")


def test_only_the_endpoints_are_offered(server: Server, client: Client):
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(named) == {"/solve_sudoku", "/solve_countdown", "/continue_text"}
    names = [parameter["parameter_name"] for parameter in named["/solve_sudoku"]["parameters"]]
    assert names[:4] == ["puzzle", "checkpoint", "steps", "loops"]
    page = urllib.request.urlopen(server.url).read().decode()
    assert str(ROOT) not in page


def test_mcp_client_solves_a_puzzle(server: Server):
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def talk() -> tuple[list[str], str]:
        async with (
            streamable_http_client(f"{server.url}/gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = (await session.list_tools()).tools
            name = next(tool.name for tool in tools if tool.name.endswith("solve_sudoku"))
            described = next(tool.description for tool in tools if tool.name == name)
            assert "Solve a Sudoku" in (described or "")
            result = await session.call_tool(name, {"puzzle": EASY, "steps": 10, "loops": 8})
            return [tool.name for tool in tools], result.content[0].text  # type: ignore[union-attr]

    names, text = asyncio.run(talk())
    assert len(names) == 3
    answer = ast.literal_eval(text)  # Gradio sends what Python prints
    assert len(answer["solution"]) == 81
    if "sudoku-9x9" in server.trained:
        assert answer["valid"]


def test_twenty_visitors(server: Server):
    """Each opens the app and runs three puzzles; none fails, and a second wave needs no more memory than the first."""

    def visit(runs: int) -> int:
        client = connect(server)
        answers = [client.predict(puzzle=EASY, steps=2 + run, loops=4, api_name="/solve_sudoku") for run in range(runs)]
        return sum(len(answer["solution"]) == 81 for answer in answers)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(visit, [3] * 20)) == [3] * 20
        first = server.memory()
        assert list(pool.map(visit, [2] * 20)) == [2] * 20
    grown = server.memory() - first
    print(f"memory after 20 visitors: {first:.0f} MB, after 40: {first + grown:.0f} MB")
    assert grown < 64, f"the second wave took {grown:.0f} MB more"
