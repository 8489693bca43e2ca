"""Build the sdist and the wheel, install them as users do, and try everything there: `make release-check`.

Each check is a row of the table at the end, and the exit code is 1 if one failed. Environments are made by uv in a temporary
folder whose name has spaces and 日本 in it. They share one copy of torch, and the versions of constraints.txt; UV_INDEX,
UV_FIND_LINKS and uv's other variables say where packages come from. As root, commands run without a network, and the demo as a
user who may not write to site-packages; otherwise the table says so. About ten minutes of CPU time.

    python scripts/check_release.py
    python scripts/check_release.py --only build contents metadata     # a minute
    python scripts/check_release.py --publish --tag v0.2.0 --out dist  # what .github/workflows/release.yml does
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
UV = [sys.executable, "-m", "uv", "--quiet"]
NOBODY = 65534  # the user and group "nobody", who owns nothing
NOT_FOR_USERS = ("dev",)  # extras
SMALL = ("images.size=32", "model.backbone=test_resnet", "model.pretrained=false", "data.workers=0")
IMAGES = ("--size", "32", "--resize", "0", "--device", "cpu", "--workers", "0", "-q")

# Every verb, in an order in which each finds what it needs, and the extra that has to be enough for it. With suprank[all], @ is
# nothing; with other extras, what the verbs wrote then is there, and @ keeps what they write now apart.
VERBS = {
    "data import": ("vision", "data import folder photos --holdout-classes 0.5 --out m@.parquet"),
    "data check": ("vision", "data check m.parquet"),
    "data show": ("vision", "data show m.parquet --out sheet@.png"),
    "data export": ("vision", "data export m.parquet --out shards@"),
    "data import hf": ("vision", "data import hf shards --out h@.parquet"),
    "models create": ("vision", "models create test_resnet --untrained --dim 8 --image-size 32 --out model@"),
    "models push": ("vision", "models push model org/name --dry-run card@"),
    "models export": ("export", "models export model --out model@.onnx"),
    "embed": ("vision", f"embed model m.parquet --out e@ {' '.join(IMAGES)}"),
    "evaluate": ("vision", "evaluate e -q"),
    "recipes": ("vision", "recipes"),
    "train": ("train", f"train photos/roadmap data.manifest=m.parquet run.epochs=1 {' '.join(SMALL)} --out run@"),
    "compare": ("train", f"compare photos/roadmap data.manifest=m.parquet {' '.join(SMALL)} --dry-run --out c@"),
    "adapt": ("train", "adapt e --out head@"),
    "paper": ("train", "paper"),
    "report": ("explore", "report e --out page@.html --queries 1 --top 2 -q"),
    "explore": ("explore", "explore e --port 0"),
    "search": ("explore", "search x.npy --queries x.npy -q"),
    "hierarchy new": ("hierarchy", "hierarchy new project@ --labels labels.txt"),
    "hierarchy cluster": ("hierarchy", "hierarchy cluster project -q"),
    "hierarchy review": ("hierarchy", "hierarchy review project --annotator anna --port 0"),
}

MATERIAL = """
import numpy as np
from pathlib import Path
from PIL import Image
generator = np.random.default_rng(0)
for label in range(16):
    folder = Path("photos") / f"group {label // 8}" / f"鳥 {label}"
    folder.mkdir(parents=True)
    for image in range(6):
        color = np.full((40, 40, 3), 15 * label) + generator.integers(0, 20, (40, 40, 3))
        Image.fromarray(color.astype(np.uint8)).save(folder / f"{image}.png")
np.save("x.npy", generator.standard_normal((20, 8), dtype=np.float32))
Path("labels.txt").write_text("jay\\nteal\\nheron\\nwren\\ncrow\\n", encoding="utf-8")
"""

# Runs each verb in a fork of a process that has imported torch. A page that is served is stopped: it works.
RUNNER = """
import json, os, signal, sys, time
import torch
torch.set_num_threads(1)
try:
    import suprank.cli.app
except ImportError:  # the command line is missing, as each verb will say
    pass
found = {}
for verb, words in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        os.dup2(os.open(".said", os.O_RDWR | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        sys.argv = ["suprank", *words.split()]
        code = 99
        try:
            from suprank.cli.main import main
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    until, served = time.monotonic() + 600, False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        said = open(".said", encoding="utf-8").read() if os.path.exists(".said") else ""
        if ended:
            break
        if "http://127.0.0.1" in said and not served:
            served = True
            os.kill(child, signal.SIGINT)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    found[verb] = (0 if served else os.waitstatus_to_exitcode(status), said[-2000:])
    os.path.exists(".said") and os.remove(".said")
print(json.dumps(found))
"""

# In a network of its own, the loopback device is down, and pages could not be served.
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", 1))
os.execvp(sys.argv[1], sys.argv[1:])
"""

INSTALLED = """
import json
from importlib.metadata import distributions
print(json.dumps([
    [one.name, one.version, one.metadata.get("License-Expression"), one.metadata.get("License"),
     [line for line in one.metadata.get_all("Classifier") or [] if line.startswith("License")]]
    for one in distributions()
]))
"""

REQUIREMENTS_AGREE = """
import sys
from importlib.metadata import distributions, version
from packaging.requirements import Requirement
wrong = []
for one in distributions():
    for line in one.requires or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            try:
                there = version(needed.name)
            except Exception:
                there = None
            if there is None or not needed.specifier.contains(there, prereleases=True):
                wrong.append(f"{one.name} needs {line}, and {there} is installed")
sys.exit("; ".join(wrong) or None)
"""

# Licenses that allow use in any program, as substrings of what packages say of themselves; weak copyleft (MPL) is among them.
ALLOWED = (
    *(
        "MIT",
        "BSD",
        "Apache",
        "ISC",
        "HPND",
        "PSF",
        "Python Software Foundation",
        "MPL-2.0",
        "MPL 2.0",
        "Mozilla Public License 2.0",
    ),
    *("Unlicense", "Zlib", "CC0", "CNRI", "public domain"),
)
KNOWN = {"resvg-py": "MIT"}  # packages whose metadata name no license, and the one whose text is in them


class CheckError(Exception):
    """A check failed."""


def run(command: list[str | Path], **named: object) -> str:
    """The standard output of a command that has to succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **named)  # type: ignore[call-overload]
    if done.returncode:
        words = " ".join(map(str, command))[:200]
        raise CheckError(f"{words} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Release:
    """The built distributions and the environments that they are installed into."""

    def __init__(self, folder: Path, *, tag: str, publish: bool) -> None:
        self.folder, self.tag, self.publish = folder, tag, publish
        self._environments: dict[str, Path] = {}

    # Distributions

    @cached_property
    def built(self) -> tuple[Path, Path]:
        """The sdist, and the wheel made from it."""
        out = self.folder / "dist"
        run([*UV, "build", "--out-dir", out, ROOT])
        (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
        return sdist, wheel

    def check_version(self) -> str:
        version = version_of_source()
        names = {path.name.split("-")[1].removesuffix(".tar.gz") for path in self.built}
        if names != {version}:
            raise CheckError(f"src/suprank/__init__.py says {version}, the built files say {names}")
        if f"\n## [{version}] - " not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
            raise CheckError(f"CHANGELOG.md has no entry [{version}] with a date")
        if self.tag and self.tag != f"v{version}":
            raise CheckError(f"the tag is {self.tag}, the version {version}; tag v{version}")
        if self.publish and (changed := run(["git", "-C", ROOT, "status", "--porcelain"])):
            raise CheckError(f"there are uncommitted files:\n{changed}")
        return version

    def check_build(self) -> str:
        """The wheel made from the sdist is the wheel made from the tree."""
        out = self.folder / "dist of the tree"
        run([*UV, "build", "--wheel", "--out-dir", out, ROOT])
        (from_tree,) = out.glob("*.whl")
        ours, theirs = digests(self.built[1]), digests(from_tree)
        if different := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
            raise CheckError(f"files differ between the wheel of the sdist and that of the tree: {', '.join(different)}")
        size = self.built[1].stat().st_size / 1e6
        return f"{len(ours)} files, {size:.1f} MB; the wheels of sdist and tree are equal"

    def check_contents(self) -> str:
        """The wheel has the tracked files of the package and the recipes, and no others; the sdist only tracked files."""
        tracked = run(["git", "-C", ROOT, "ls-files"]).splitlines()
        expected = {name.removeprefix("src/") for name in tracked if name.startswith("src/suprank/")}
        expected |= {f"suprank/{name}" for name in tracked if name.startswith("recipes/")}
        with zipfile.ZipFile(self.built[1]) as wheel:
            found = {name for name in wheel.namelist() if ".dist-info/" not in name}
            information = {name.partition(".dist-info/")[2] for name in wheel.namelist()} - {""}
        if found != expected:
            raise CheckError(f"not in the wheel: {sorted(expected - found)}; not tracked by git: {sorted(found - expected)}")
        for needed in ("suprank/py.typed", "suprank/paper/paper.toml"):
            if needed not in found:
                raise CheckError(f"{needed} is not in the wheel")
        if missing := {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"} - information:
            raise CheckError(f"not in the wheel's metadata: {missing}")
        with tarfile.open(self.built[0]) as sdist:
            packed = {name.partition("/")[2] for name in sdist.getnames() if not sdist.getmember(name).isdir()}
        if unknown := packed - {*tracked, "PKG-INFO"}:
            raise CheckError(f"in the sdist, but not tracked by git: {sorted(unknown)}")
        if missing := {name for name in tracked if name.startswith(("src/", "tests/", "recipes/", "docs/"))} - packed:
            raise CheckError(f"not in the sdist: {sorted(missing)[:20]}")
        return f"{len(found)} files in the wheel, {len(packed)} in the sdist, all tracked by git"

    def check_metadata(self) -> str:
        run([sys.executable, "-m", "twine", "check", "--strict", *self.built])
        with zipfile.ZipFile(self.built[1]) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            text = wheel.read(name).decode()
        relative = re.findall(r"\]\((?!https?://|#)([^)\s]+)\)", text)
        if "Project-URL: Source, https://" not in text or relative:
            if self.publish:
                raise CheckError(f"set `repository` in pyproject.toml: no project URLs, and {len(relative)} relative links")
            return f"twine is content; without `repository` in pyproject.toml, {len(relative)} links of the README are relative"
        return "twine is content; links are absolute"

    # Environments

    @cached_property
    def torch_layer(self) -> tuple[Path, set[str]]:
        """The site-packages with torch and numpy that all environments share, and the names of what is in it."""
        python = self._new_environment("torch")
        run([*UV, "pip", "install", "--python", python, "-c", ROOT / "constraints.txt", "torch", "numpy"])
        return site_packages(python), {normalized(one["name"]) for one in pip_list(python)}

    def environment(self, extra: str) -> Path:
        """The Python of a fresh environment in which suprank[extra] is installed from the wheel."""
        if extra not in self._environments:
            layer, there = self.torch_layer
            wanted = f"suprank[{extra}] @ {self.built[1].as_uri()}"
            compiled = ["pip", "compile", "--no-header", "--no-annotate", "-c", ROOT / "constraints.txt", "-"]
            python = self._new_environment(f"env {extra or 'core'}")
            lines = run([*UV, *compiled, "--python", python], input=wanted).splitlines()
            rest = [line for line in lines if normalized(re.split(r"[ =@\[]", line)[0]) not in there]
            requirements = self.folder / f"{extra or 'core'}.txt"
            requirements.write_text("\n".join(rest), encoding="utf-8")
            run([*UV, "pip", "install", "--python", python, "--no-deps", "-r", requirements])
            (site_packages(python) / "torch_layer.pth").write_text(f"{layer}\n", encoding="utf-8")
            self._environments[extra] = python
        return self._environments[extra]

    def _new_environment(self, name: str) -> Path:
        run([*UV, "venv", "--python", sys.executable, self.folder / name])
        return self.folder / name / "bin" / "python"

    def check_environment(self) -> str:
        """Every package that is installed agrees with the versions of the others."""
        python = self.environment("all")
        shown = json.loads(run([python, "-c", INSTALLED]))
        run([python, "-c", REQUIREMENTS_AGREE])
        return f"suprank[all] brings {len(shown)} packages, whose requirements agree"

    def check_verbs(self) -> str:
        """With each extra, a verb works or names another extra, with which it works."""
        extras = [one for one in PROJECT["project"]["optional-dependencies"] if one not in (*NOT_FOR_USERS, "all")]
        outcomes = {}
        for extra in ["all", "", *extras]:
            outcomes[extra] = self._outcomes(extra)
            print(
                f"  verbs with suprank[{extra}]: {sum(not code for code, _ in outcomes[extra].values())} work", file=sys.stderr
            )
        problems = []
        for extra, verbs in outcomes.items():
            for verb, (code, said) in verbs.items():
                enough = VERBS[verb][0]
                named = re.search(r'pip\s+install\s+"suprank\[([\w,-]+)\]"', said)
                if code and not named:
                    problems.append(f"[{extra}] suprank {VERBS[verb][1]} ended with {code}: {said[-600:]}")
                elif code and (extra in (enough, "all") or outcomes.get(named[1], {}).get(verb, (1,))[0]):
                    problems.append(f"[{extra}] suprank {verb} names suprank[{named[1]}], which is not enough")
        if problems:
            raise CheckError("\n".join(problems))
        works = sum(code == 0 for verbs in outcomes.values() for code, _ in verbs.values())
        return f"{len(VERBS)} verbs, {len(outcomes)} extras: {works} calls work, the others name an extra that is enough"

    def _outcomes(self, extra: str) -> dict[str, tuple[int, str]]:
        """(exit code, end of the output) of each verb."""
        folder = self.folder / f"work {extra or 'core'}"
        if extra == "all":
            folder.mkdir()
            run([self.environment("all"), "-c", MATERIAL], cwd=folder)
            shutil.copytree(folder, self.folder / "material")
        else:  # what earlier verbs write is there, whether they work with this extra or not
            shutil.copytree(self.folder / "made", folder)
        words = {verb: words.replace("@", "" if extra == "all" else "-again") for verb, (_, words) in VERBS.items()}
        command = [*offline(), self.environment(extra), "-c", RUNNER]
        found = json.loads(run(command, cwd=folder, env=self._variables(folder), input=json.dumps(words)).splitlines()[-1])
        if extra == "all":
            shutil.copytree(folder, self.folder / "made")
        return {verb: (code, said) for verb, (code, said) in found.items()}

    def _variables(self, home: Path) -> dict[str, str]:
        """Environment variables of a user whose home is `home`, and for whom nothing can be downloaded."""
        kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "PATH", "TZ")}
        dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
        return {**kept, **dead, "HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}

    def check_demo(self) -> str:
        """The demo, offline, by a user who may not write to site-packages, in a folder with spaces and 日本 in its name."""
        python = self.environment("train")
        home = self.folder / "home 日本"
        home.mkdir()
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        if os.geteuid() or not shutil.which("setpriv"):
            user, who = [], "as this user (only root can become another)"
        elif subprocess.run([*user, python, "-c", ""], capture_output=True).returncode:
            user, who = [], f"as root (nobody may not run {sys.executable}; start this with another Python)"
        else:
            os.chown(home, NOBODY, NOBODY)
            who = "as nobody, who cannot write to site-packages"
        if user:  # to be sure that it is read-only
            refused = subprocess.run(
                [*user, python, "-c", f"open({str(site_packages(python) / 'x')!r}, 'w')"], capture_output=True
            )
            if not refused.returncode:
                raise CheckError("nobody may write to site-packages")
        command = [*offline(), *user, python.with_name("suprank"), "demo", "--data", "glyphs", "--epochs", "1"]
        said = run(command, cwd=home, env=self._variables(home))
        if "HAPPIER" not in said or not list(home.glob("runs/**/embedder.json")):
            raise CheckError(f"the demo wrote no runs:\n{said[-2000:]}")
        return f"{who}, {'without a network' if offline() else 'network by proxy variables only'}"

    def check_licenses(self) -> str:
        found = json.loads(run([self.environment("all"), "-c", INSTALLED]))
        unknown, rows = [], []
        for name, version, expression, text, classifiers in found:
            declared = expression or " / ".join(line.split(" :: ")[-1] for line in classifiers if line.count(" :: ") > 1)
            declared = declared or (text or "").strip().partition("\n")[0] or KNOWN.get(normalized(name), "")
            rows.append((name, version, declared))
            if not any(one.lower() in declared.lower() for one in ALLOWED):
                unknown.append(f"{name} {version}: {declared or 'no license'}")
        lines = [
            f"{name} {version}\t{declared}" for name, version, declared in sorted(set(rows), key=lambda row: row[0].lower())
        ]
        print("\n".join(lines))
        if unknown:
            raise CheckError(f"not in the list of allowed licenses: {'; '.join(sorted(unknown))}")
        return f"{len(lines)} packages of suprank[all], all with allowed licenses"


def version_of_source() -> str:
    """`__version__`, without importing the package."""
    tree = ast.parse((ROOT / "src" / "suprank" / "__init__.py").read_text(encoding="utf-8"))
    (found,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    )
    return str(ast.literal_eval(found))


def digests(wheel: Path) -> dict[str, str]:
    """File → hash of its contents."""
    with zipfile.ZipFile(wheel) as files:
        return {name: hashlib.sha256(files.read(name)).hexdigest() for name in files.namelist()}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pip_list(python: Path) -> list[dict[str, str]]:
    return json.loads(run([*UV, "pip", "list", "--python", python, "--format", "json"]))


def site_packages(python: Path) -> Path:
    return Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())


@cache
def offline() -> tuple[str, ...]:
    """The start of a command that runs without a network, where that is possible."""
    if os.geteuid() or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return ()
    return ("unshare", "--net", sys.executable, "-c", LOOPBACK)


@contextmanager
def working_folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="suprank release 日本 "))
    folder.chmod(0o755)  # for nobody, too
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def outcome(check: Callable[[], str]) -> tuple[str, str]:
    try:
        return "ok", check()
    except CheckError as problem:
        return "failed", str(problem)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


def main() -> int:
    names = [name.removeprefix("check_") for name in vars(Release) if name.startswith("check_")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CHECK", help=f"of {', '.join(names)}")
    parser.add_argument("--publish", action="store_true", help="also require links that work on PyPI and a clean checkout")
    parser.add_argument("--tag", default="", help="require that the version is this tag's")
    parser.add_argument("--out", type=Path, help="copy the sdist and the wheel there if all is well")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    arguments = parser.parse_args()
    rows = []
    with working_folder(arguments.keep) as folder:
        release = Release(folder, tag=arguments.tag, publish=arguments.publish)
        for name in arguments.only:
            start = time.monotonic()
            state, detail = outcome(getattr(release, f"check_{name}"))
            rows.append((name, state, f"{time.monotonic() - start:.0f} s", detail))
            print(f"{name}: {state}", file=sys.stderr, flush=True)
        failed = any(state == "failed" for _, state, *_ in rows)
        if arguments.out and not failed:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for file in release.built:
                shutil.copy2(file, arguments.out)
    for name, state, seconds, detail in rows:
        print(f"{name:12} {state:8} {seconds:>6}  {detail}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
