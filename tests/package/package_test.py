"""The installed package in the hands of two consumer projects, and what configuring says about an unusable LibTorch.

CTest runs it with the test classes to run; `make test` builds what it installs. Nothing is written outside a temporary
directory.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
STANDARDS = (None, 20, 23)
options = argparse.Namespace()


def run(*command, path=None):
    environment = dict(os.environ, **({"PATH": path} if path else {}))
    environment.pop("TORCH_DIR", None)
    return subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def configure(source, build, *definitions, path=None):
    return run(
        options.cmake, "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_CXX_COMPILER={options.cxx}",
        *[f"-D{definition}" for definition in definitions], path=path,
    )


def standard_definition(standard):
    return [] if standard is None else [f"CMAKE_CXX_STANDARD={standard}"]


def path_without(program):
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not os.access(os.path.join(folder, program), os.X_OK))


class PackageTest(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="dualpipe_package_")))

    def succeeds(self, result):
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def refuses(self, result, message):
        """One error, and it is this message; CMake breaks its lines as it likes."""
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertEqual(result.stdout.count("CMake Error"), 1, result.stdout)
        self.assertIn(message, " ".join(result.stdout.split()))

    def install(self):
        prefix = self.scratch / "prefix"
        self.succeeds(run(options.cmake, "--install", options.build, "--prefix", prefix))
        return prefix

    def configure_consumer(self, name, package, build, *definitions, path=None):
        return configure(
            HERE / name, build, f"CMAKE_PREFIX_PATH={package}", f"CMAKE_CXX_FLAGS={options.cxx_flags}", *definitions,
            path=path,
        )

    def build_and_run_consumer(self, build):
        self.succeeds(run(options.cmake, "--build", build))
        return self.succeeds(run(build / "consumer"))


class PureConsumer(PackageTest):
    PLAN = "0F0,0F1,0F2\nmakespan 66\n"

    def test_plans_from_the_install_tree_under_every_standard(self):
        prefix = self.install()
        for standard in STANDARDS:
            with self.subTest(standard=standard):
                build = self.scratch / f"std_{standard}"
                self.succeeds(
                    self.configure_consumer("pure_consumer", prefix, build, *standard_definition(standard))
                )
                self.assertEqual(self.build_and_run_consumer(build), self.PLAN)

    def test_plans_from_the_build_tree(self):
        build = self.scratch / "build"
        self.succeeds(self.configure_consumer("pure_consumer", options.build, build))
        self.assertEqual(self.build_and_run_consumer(build), self.PLAN)

    def test_asks_in_vain_for_a_runtime_that_was_not_built(self):
        if options.torch:
            return self.assertTrue((Path(options.build) / "dualpipe_torch.cmake").exists())
        self.refuses(
            self.configure_consumer("runtime_consumer", options.build, self.scratch / "build"),
            "component runtime: this dualpipe was built with -DDUALPIPE_WITH_TORCH=OFF",
        )


class RuntimeConsumer(PackageTest):
    def test_trains_a_step_from_the_install_tree(self):
        build = self.scratch / "build"
        self.succeeds(self.configure_consumer("runtime_consumer", self.install(), build))
        self.assertEqual(self.build_and_run_consumer(build), "losses 4\n")

    def test_the_build_tree_is_found_too(self):
        self.succeeds(self.configure_consumer("runtime_consumer", options.build, self.scratch / "build"))

    def test_another_libtorch_than_the_one_it_was_built_with_is_refused(self):
        other = libtorch_of_version(self.scratch / "other", "2.14.0", options.torch)
        result = self.configure_consumer("runtime_consumer", options.build, self.scratch / "build", f"TORCH_DIR={other}")
        self.refuses(result, "dualpipe was built with LibTorch")
        self.assertIn(f"found 2.14.0 in {other}", " ".join(result.stdout.split()))


class FieldReport73(PackageTest):
    """A consumer that sets a newer C++ standard, with and without a CUDA compiler."""

    def test_every_standard_configures_without_a_cuda_compiler_and_the_newest_links(self):
        self.configures_under_every_standard([], path_without("nvcc"))
        self.build_and_run_consumer(self.scratch / f"std_{STANDARDS[-1]}")

    def test_every_standard_configures_with_a_cuda_compiler(self):
        nvcc = shutil.which("nvcc")
        cuda = [f"CMAKE_CUDA_COMPILER={nvcc}", "CONSUMER_CUDA=ON"] if nvcc else []
        self.configures_under_every_standard(cuda, None)

    def configures_under_every_standard(self, definitions, path):
        prefix = self.install()
        for standard in STANDARDS:
            with self.subTest(standard=standard):
                build = self.scratch / f"std_{standard}"
                self.succeeds(
                    self.configure_consumer(
                        "runtime_consumer", prefix, build, *standard_definition(standard), *definitions, path=path
                    )
                )


class FieldReport74(PackageTest):
    """A build with the other libstdc++ string ABI than LibTorch's."""

    FLAGS = "-D_GLIBCXX_USE_CXX11_ABI=0"
    MESSAGE = (
        "The flags of this project set _GLIBCXX_USE_CXX11_ABI=0, but {torch} was built with "
        "_GLIBCXX_USE_CXX11_ABI=1, and the two do not link. Remove the flag: LibTorch::LibTorch carries the right one."
    )

    def test_our_own_build_says_so(self):
        result = configure(
            options.source, self.scratch / "build", f"TORCH_DIR={options.torch}", f"CMAKE_CXX_FLAGS={self.FLAGS}"
        )
        self.refuses(result, self.MESSAGE.format(torch=options.torch))

    def test_a_consumer_is_told_too(self):
        result = self.configure_consumer(
            "runtime_consumer", options.build, self.scratch / "build", f"CMAKE_CXX_FLAGS={self.FLAGS}"
        )
        self.refuses(result, self.MESSAGE.format(torch=options.torch))


class FieldReport76(PackageTest):
    """TORCH_DIR names an empty directory, or a LibTorch that was built without distributed."""

    def test_an_empty_directory_is_no_libtorch(self):
        empty = self.scratch / "empty"
        empty.mkdir()
        self.refuses(
            configure(options.source, self.scratch / "build", f"TORCH_DIR={empty}"),
            f"LibTorch not found in {empty}: lib/libtorch_cpu.so or include/ATen/ATen.h is missing. Give TORCH_DIR the "
            "directory of an unpacked LibTorch, or that of the torch package in a Python environment, for example "
            "-DTORCH_DIR=.venv/lib/python3.11/site-packages/torch, which `make setup` installs.",
        )

    def test_a_libtorch_without_c10d_is_refused(self):
        bare = self.scratch / "bare"
        mirror(Path(options.torch), bare, without="include/torch/csrc/distributed")
        result = configure(options.source, self.scratch / "build", f"TORCH_DIR={bare}")
        self.refuses(result, f"DualPipe needs a LibTorch built with distributed: {bare}")
        self.assertIn("lacks include/torch/csrc/distributed/c10d/ProcessGroup.hpp", " ".join(result.stdout.split()))


class LibTorchVersion(PackageTest):
    def test_an_older_libtorch_is_refused(self):
        old = libtorch_of_version(self.scratch / "old", "2.10.1", options.torch)
        self.refuses(
            configure(options.source, self.scratch / "build", f"TORCH_DIR={old}"),
            f"LibTorch 2.11 or newer is needed, found '2.10.1' in {old}. "
            "Give TORCH_DIR a newer one, or unset it to use torch 2.15.0 from `make setup`.",
        )


class NcclVersion(PackageTest):
    """ProcessGroupNCCL compiled against the headers of another NCCL corrupts the heap at run time."""

    def test_headers_of_another_nccl_are_refused(self):
        header = self.scratch / "nccl.h"
        header.write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 3\n#define NCCL_PATCH 4\n")
        result = configure(
            options.source, self.scratch / "build", f"TORCH_DIR={options.torch}", "DUALPIPE_WITH_CUDA=ON",
            f"DUALPIPE_NCCL_INCLUDE_DIR={self.scratch}",
        )
        self.refuses(result, f"NCCL headers 2.3.4 in {self.scratch} do not match LibTorch")


def mirror(original, copy, without):
    """`copy` holds links to everything in `original` but the path `without`."""
    first, _, rest = without.partition("/")
    copy.mkdir()
    for entry in original.iterdir():
        if entry.name != first:
            (copy / entry.name).symlink_to(entry)
    if rest:
        mirror(original / first, copy / first, rest)


def libtorch_of_version(copy, version, original):
    """A LibTorch that claims to be of another version."""
    mirror(Path(original), copy, without="include/torch/headeronly/version.h")
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
    lines = "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in parts)
    (copy / "include/torch/headeronly/version.h").write_text(lines)
    return copy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("cmake", "source", "build", "torch", "cxx", "cxx-flags"):
        parser.add_argument(f"--{name}", default="")
    _, classes = parser.parse_known_args(namespace=options)
    unittest.main(argv=[sys.argv[0], *classes], verbosity=2)
