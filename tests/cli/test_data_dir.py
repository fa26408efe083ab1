"""One supervisor to a data directory; ports that stay and differ."""

import json
import os
import socket
import stat
import subprocess
import sys

import pytest

from commands.data_dir import DataDirectory
from commands.exits import CommandError, ExitCode
from commands.ports import PortBook


class TestDataDirectory:
    def test_a_new_one_is_for_its_owner_only_and_so_are_its_files(self, tmp_path):
        data = DataDirectory(tmp_path / "a" / "b")
        data.create()
        data.write("stack.json", {"x": 1})
        data.lock()
        assert stat.S_IMODE(data.path.stat().st_mode) == 0o700
        for name in ("stack.json", "supervisor.lock"):
            assert stat.S_IMODE((data.path / name).stat().st_mode) == 0o600
        assert data.read("stack.json") == {"x": 1}
        assert {entry.name for entry in data.path.iterdir()} == {"stack.json", "supervisor.lock", "logs-of-processes"}

    def test_a_directory_with_other_things_in_it_is_refused_and_left_as_it_is(self, tmp_path):
        tmp_path.chmod(0o755)
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(CommandError, match="holds other files") as caught:
            DataDirectory(tmp_path).create()
        assert caught.value.code is ExitCode.STACK_FAILED
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755

    def test_a_path_too_long_for_the_agents_socket_is_refused_before_anything_is_made(self, tmp_path):
        path = tmp_path / ("x" * 100)
        with pytest.raises(CommandError, match="too long"):
            DataDirectory(path).create()
        assert not path.exists()

    def test_a_file_in_its_place_is_refused(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(CommandError, match="cannot be used"):
            DataDirectory(tmp_path / "file").create()

    def test_a_second_supervisor_is_told_who_has_it(self, tmp_path):
        first, second = DataDirectory(tmp_path), DataDirectory(tmp_path)
        first.create()
        first.lock()
        with pytest.raises(CommandError, match=f"process {os.getpid()}") as caught:
            second.lock()
        assert caught.value.code is ExitCode.STACK_FAILED
        first.unlock()
        second.lock()

    def test_the_lock_of_a_killed_supervisor_is_free(self, tmp_path):
        DataDirectory(tmp_path).create()
        program = (
            "import sys, time, pathlib; from commands.data_dir import DataDirectory;"
            "d = DataDirectory(pathlib.Path(sys.argv[1])); d.lock(); print('locked', flush=True); time.sleep(60)"
        )
        holder = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(CommandError):
            DataDirectory(tmp_path).lock()
        holder.kill()
        holder.communicate()
        DataDirectory(tmp_path).lock()

    def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_behind(self, tmp_path):
        data = DataDirectory(tmp_path)
        data.write("stack.json", {"x": 1})
        with pytest.raises(TypeError):
            data.write("stack.json", {"x": object()})
        assert [entry.name for entry in tmp_path.iterdir()] == ["stack.json"]
        assert json.loads((tmp_path / "stack.json").read_text()) == {"x": 1}

    @pytest.mark.parametrize("content", ["", "nonsense", "[]"])
    def test_a_damaged_file_reads_as_empty(self, tmp_path, content):
        (tmp_path / "stack.json").write_text(content)
        assert DataDirectory(tmp_path).read("stack.json") == {}


class TestPorts:
    def test_two_books_never_choose_the_same_port(self, tmp_path):
        first, second = PortBook(tmp_path), PortBook(tmp_path)
        chosen = [first.choose(), second.choose(), first.choose(), second.choose()]
        assert len(set(chosen)) == 4
        assert not second.claim(chosen[0])

    def test_the_preferred_port_is_chosen_while_it_is_free(self, tmp_path):
        first, second = PortBook(tmp_path), PortBook(tmp_path)
        port = first.choose()
        first.release()
        assert second.choose(None, port) == port
        assert first.choose(port) != port

    def test_a_port_on_which_another_program_listens_is_not_chosen(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            taken = listener.getsockname()[1]
            book = PortBook(tmp_path)
            assert not book.claim(taken)
            assert book.choose(taken) != taken
        assert book.claim(taken)

    def test_a_folder_that_is_a_link_elsewhere_is_refused(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "ports").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CommandError, match="another user"):
            PortBook(tmp_path / "ports").claim(50_000)
