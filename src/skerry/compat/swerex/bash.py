"""One bash on a terminal in the sandbox, as SWE-ReX's local runtime has one.

What is different: the prompt is a random text that carries the exit code, so that output cannot look
like it; and a command is handed over in a file, so that its length and its lines do not matter.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import secrets

from skerry import aio
from skerry.compat.swerex.screen import Gone, Screen
from skerry.compat.swerex.wire import Action, CreateSession, of_python, of_swerex
from skerry.errors import SkerryError
from skerry.spec.command import Terminal

INTERRUPT, SUSPEND = "\x03", "\x1a"
SETTLE_S = 0.2
SILENT_S = 6 * 3600.0  # a shell that nobody has used for so long is ended: its server was killed
EXPECT_MAX, PATTERN_MAX = 32, 4096
RETRIES_MAX = 100


class Bash:
    """A session. One action runs at a time; what one leaves running, an interrupt ends."""

    def __init__(self, sandbox: aio.Sandbox, place: str) -> None:
        self._sandbox = sandbox
        self._place = place  # of the files of commands; only the sandbox's user may look into it
        self._mark = secrets.token_hex(8)
        self._prompt = re.compile(rf"<{self._mark}:(\d*)>")
        self._screen = Screen()
        self._turn = asyncio.Lock()
        self._shell: aio.CommandHandle | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, asked: CreateSession) -> str:
        """Starts it, sources what is asked for, and returns what that has said.

        CommandTimeoutError if it does not come to a prompt in time.
        """
        environment = {"TERM": "dumb", "PS1": "", "PS2": "", "PS0": "", "HISTFILE": ""}
        argv = ["bash", "--norc", "--noprofile", "-i"]
        terminal = Terminal(24, 200)
        self._shell = await self._sandbox.start(
            argv, terminal=terminal, interactive=True, env=environment, no_output_timeout=SILENT_S
        )
        if self._shell.status.result is not None and self._shell.status.result.start_error:
            raise of_swerex("SessionNotInitializedError", self._shell.status.result.start_error)
        self._reader = asyncio.create_task(self._read(self._shell))
        sources = "\n".join(f"source {path}" for path in asked.startup_source)
        # readline would show what is typed, and bash its prompt for further lines.
        await self._shell.send(f" stty -echo; {self._reset()}; echo {self._mark[:8]}''begin\n")
        await self._until([re.compile(f"{self._mark[:8]}begin")], max(10.0, asked.startup_timeout))
        await self._until([self._prompt], max(10.0, asked.startup_timeout))
        if not sources:
            return ""
        await self._hand_over(sources)
        return (await self._until([self._prompt], asked.startup_timeout))[0]

    async def run(self, action: Action) -> dict[str, object]:
        """Returns the observation; raises what SWE-ReX's local runtime raises."""
        if action.action_type == "bash_interrupt":
            return await self._interrupt(action)
        async with self._turn:
            if action.is_interactive_command or action.is_interactive_quit:
                return await self._interactive(action)
            return await self._normal(action)

    async def close(self) -> None:
        """Ends it and all that it started; may be called twice."""
        if self._shell is not None:
            with contextlib.suppress(SkerryError):
                await self._shell.kill()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    # --- actions

    async def _normal(self, action: Action) -> dict[str, object]:
        await self._check_syntax(action.command)
        patterns = _patterns(action.expect)
        self._screen.take()
        await self._hand_over(action.command)
        output, which, match = await self._until([*patterns, self._prompt], action.timeout, action)
        if which < len(patterns):
            return _observed(output, None, action.expect[which])
        code = int(match[1] or 0)
        if action.check == "raise" and code != 0:
            message = f"Command {action.command!r} failed with exit code {code}. "
            message += f"Here is the output:\n{output!r}"
            if action.error_msg:
                message = f"{action.error_msg}: {message}"
            raise of_swerex("NonZeroExitCodeError", message)
        return _observed(output, None if action.check == "ignore" else code, "SHELLPS1PREFIX")

    async def _interactive(self, action: Action) -> dict[str, object]:
        patterns = _patterns(action.expect)
        self._screen.take()
        await self._type(f"{action.command}\n")
        output, which, _ = await self._until([*patterns, self._prompt], action.timeout, action)
        if action.is_interactive_quit:
            # The program may have left the terminal as it liked it.
            await self._type(f" stty -echo; {self._reset()}; echo {self._mark[:8]}''begin\n")
            await self._until([re.compile(f"{self._mark[:8]}begin")], 10.0)
            await self._until([self._prompt], 10.0)
        else:  # which often turns the echo on
            output = output.lstrip().removeprefix(action.command).strip()
        matched = action.expect[which] if which < len(patterns) else "SHELLPS1PREFIX"
        return _observed(output, 0, matched)

    async def _interrupt(self, action: Action) -> dict[str, object]:
        patterns = [*_patterns(action.expect), self._prompt]
        names = [*action.expect, "SHELLPS1PREFIX"]
        limit = action.timeout or 0.2
        for last in [False] * min(max(action.n_retry, 1), RETRIES_MAX) + [True]:
            await self._type(SUSPEND if last else INTERRUPT)
            try:
                output, which, _ = await self._screen.expect(patterns, limit)
            except TimeoutError:
                await asyncio.sleep(SETTLE_S)
                continue
            if last:  # it is gone when this is answered, and bash says no more of it
                await self._type(" kill -9 %1; wait -f %1\n")
                output += (await self._until([self._prompt], 10.0))[0]
            await asyncio.sleep(SETTLE_S)  # further prompts of the same interrupt
            output = self._prompt.sub("", output + self._screen.take()).strip()
            return _observed(output, 0, names[which])
        raise of_swerex("CommandTimeoutError", "Failed to interrupt session")

    # --- the terminal

    async def _read(self, shell: aio.CommandHandle) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        try:
            async for event in shell.output():
                if event.stdout:
                    self._screen.add(decoder.decode(event.stdout))
        except SkerryError as error:
            self._screen.add(f"\n[{error}]\n")
        finally:
            self._screen.end()

    async def _until(
        self,
        patterns: list[re.Pattern[str]],
        timeout: float | None,  # noqa: ASYNC109
        action: Action | None = None,
    ) -> tuple[str, int, re.Match[str]]:
        try:
            return await self._screen.expect(patterns, timeout)
        except TimeoutError:
            what = (
                "starting the session" if action is None else f"running command {action.command!r}"
            )
            message = f"timeout after {timeout} seconds while {what}"
            raise of_swerex("CommandTimeoutError", message) from None
        except Gone as gone:
            message = f"the session's shell has ended; its last output:\n{gone}"
            raise of_swerex("NoExitCodeError", message) from None

    async def _type(self, text: str) -> None:
        if self._shell is None:
            raise of_swerex("SessionNotInitializedError", "shell not initialized")
        await self._shell.send(text)

    async def _hand_over(self, command: str) -> None:
        path = f"{self._place}/{self._mark}"
        await self._sandbox.files.write(path, command, mode=0o600)
        await self._type(f' eval "$(<{path})"; __swerex_code=$?; {self._reset()}\n')

    def _reset(self) -> str:
        # The number is looked up when the prompt is shown; a command may have set another prompt.
        return f"PS1='<{self._mark}:$__swerex_code>' PS2= PS0= PROMPT_COMMAND="

    async def _check_syntax(self, command: str) -> None:
        checked = await self._sandbox.run(["bash", "-n"], stdin=f"{command}\n", timeout=60)
        if checked.ok:
            return
        extra = {"bash_stdout": checked.text, "bash_stderr": checked.error_text}
        message = (
            f"Error (exit code {checked.exit_code}) while checking bash command \n{command!r}\n"
        )
        message += f"---- Stderr ----\n{checked.error_text}\n---- Stdout ----\n{checked.text}"
        raise of_swerex("BashIncorrectSyntaxError", message, **extra)


def _patterns(expect: list[str]) -> list[re.Pattern[str]]:
    """Returns the client's regular expressions; they are searched in a bounded part of the output."""
    if len(expect) > EXPECT_MAX or any(len(one) > PATTERN_MAX for one in expect):
        raise of_python("ValueError", f"expect: at most {EXPECT_MAX} patterns of {PATTERN_MAX}")
    try:
        return [re.compile(one, re.DOTALL) for one in expect]
    except (re.error, OverflowError, RecursionError) as error:
        raise of_python("ValueError", f"expect: no regular expression: {error}") from None


def _observed(output: str, code: int | None, matched: str) -> dict[str, object]:
    return {
        "output": output,
        "exit_code": code,
        "failure_reason": "",
        "expect_string": matched,
        "session_type": "bash",
    }
