"""Profiles as files: what was measured on one machine is emulated on another."""

import pytest
from typer.testing import CliRunner

from service.cli.commands import build_app
from service.emulator.config import ConfigFault, EmulatorConfig
from service.emulator.profile_file import ProfileFault, build_profile, dump_profile, load_profile
from service.emulator.profiles import CPU_SMALL, M31_FLASH, PROFILES

app = build_app()


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_what_is_written_is_read_back(profile, tmp_path):
    path = tmp_path / "it.json"
    path.write_text(dump_profile(profile, {"machine": "a small one"}))
    assert load_profile(str(path)) == profile


def test_yaml_needs_to_say_only_what_differs(tmp_path):
    path = tmp_path / "it.yaml"
    path.write_text("base: m3.1-flash\nname: ours\ncost: {base_s: 0.02}\nmax_num_seqs: 64\n_note: measured in May\n")
    profile = load_profile(str(path))
    assert (profile.name, profile.cost.base_s, profile.max_num_seqs) == ("ours", 0.02, 64)
    assert profile.cost.per_token_s == M31_FLASH.cost.per_token_s
    assert profile.speculation == M31_FLASH.speculation
    assert build_profile({}, "it") == CPU_SMALL


def test_all_faults_are_told_at_once():
    raw = {
        "cost": {"base_s": -1, "per_tokn_s": 0.1, "noise_cv": "much", "stall_mean_s": float("nan")},
        "output": 3,
        "name": 7,
        "max_num_seqs": 1.5,
        "speculation": {"schedule": [[1, 2, 3], "x"], "accept_length": 4},
        "colour": "red",
    }
    with pytest.raises(ProfileFault) as caught:
        build_profile(raw, "it.json")
    text = str(caught.value)
    for fault in (
        "it.json: ",
        "cost.base_s: negative",
        "cost.per_tokn_s: no such field",
        "cost.noise_cv: not a number",
        "cost.stall_mean_s: not a number",
        "output: not a mapping",
        "name: not a text",
        "max_num_seqs: not a whole number",
        "speculation.schedule: not a list of rows",
        "speculation.accept_length: not a list of rows",
        "colour: no such field",
    ):
        assert fault in text


def test_an_engine_without_room_is_refused():
    with pytest.raises(ProfileFault, match="kv_blocks: must be above zero"):
        build_profile({"kv_blocks": 0}, "it")


@pytest.mark.parametrize(
    ("text", "why"),
    [("[1, 2]", "not a mapping"), ("{", "cannot be read"), ("base: gpu", "'gpu' is none of")],
)
def test_a_file_that_is_no_profile(text, why, tmp_path):
    path = tmp_path / "it.yaml"
    path.write_text(text)
    with pytest.raises(ProfileFault, match=why):
        load_profile(str(path))


def test_a_worker_takes_its_profile_from_a_file(tmp_path):
    path = tmp_path / "it.json"
    path.write_text(dump_profile(CPU_SMALL, {}).replace('"max_model_len": 4096', '"max_model_len": 2000'))
    config = EmulatorConfig(profile=str(path))
    config.check()
    assert config.context_tokens() == 2000
    with pytest.raises(ConfigFault, match=r"profile: nowhere\.json: No such file"):
        EmulatorConfig(profile="nowhere.json").check()
    with pytest.raises(ConfigFault, match="'nothing' is none of"):
        EmulatorConfig(profile="nothing").check()


def test_the_command_refuses_a_bad_file(tmp_path):
    path = tmp_path / "it.json"
    path.write_text('{"cost": {"base_s": -1}}')
    done = CliRunner().invoke(app, ["emulate", "--profile", str(path)])
    assert done.exit_code == 2
    assert "cost.base_s: negative" in done.output
