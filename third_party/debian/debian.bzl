# SPDX-License-Identifier: Apache-2.0
"""debian_source(): third-party code from the source packages of Debian.

Fetches the upstream ("orig") tarball of a source package from the archive mirror
that apt on this machine is configured with, checks its sha256, unpacks it and
lays a BUILD file of ours over it. No mirror is named anywhere in this repository.

Where a tarball is looked for, in this order:
  1. Bazel's repository cache, by sha256, and the --distdir folders, by file name:
     neither needs a network.
  2. $DEBIAN_MIRROR, if set: base URLs (the folder that holds pool/), separated by
     spaces; http, https and file.
  3. The repositories in apt's configuration, the Debian archive itself first.

Mirrors have holes, and a version leaves the archive when the last suite that has
it moves on. So a dependency may name several pins, tried in order. Each pin is
exact; which one serves depends on what can be had, and is said when it is not the
first.
"""

def pin(version, sha256, format = "tar.xz", strip_prefix = ""):
    """One acceptable upstream tarball.

    Args:
      version: upstream version, that is the package's version without "-revision".
      sha256: of the orig tarball.
      format: its suffix: tar.xz, tar.gz or tar.bz2.
      strip_prefix: top folder inside the tarball, "" if there is none.

    Returns:
      an opaque string for debian_source(pins = [...]).
    """
    if len(sha256) != 64:
        fail("sha256 of version %s must have 64 hexadecimal digits" % version)
    return json.encode({
        "format": format,
        "sha256": sha256,
        "strip_prefix": strip_prefix,
        "version": version,
    })

def _apt_repositories(rctx):
    apt_get = rctx.which("apt-get")
    if not apt_get:
        return []

    # REPO_URI comes from sources.list alone: no index needs to be there, and
    # deb-src lines are not needed either.
    result = rctx.execute(
        [apt_get, "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
    )
    return result.stdout.split("\n") if result.return_code == 0 else []

def _mirrors(rctx):
    override = rctx.os.environ.get("DEBIAN_MIRROR", "")
    bases = []
    for base in override.split(" ") if override else _apt_repositories(rctx):
        base = base.strip().rstrip("/")
        usable = [p for p in ["http://", "https://", "file:/"] if base.startswith(p)]
        if usable and base not in bases:
            bases.append(base)

    # apt also lists -security and third-party repositories: ask them last.
    return [b for b in bases if b.endswith("/debian")] + \
           [b for b in bases if not b.endswith("/debian")]

def _pool_folder(package):
    # The archive files liba, libb, ... apart: pool/main/liba/libabc.
    letter = package[:4] if package.startswith("lib") else package[:1]
    return "pool/main/%s/%s" % (letter, package)

def _help(package, files, mirrors):
    return """

None of the pinned versions of Debian source package '{package}' could be fetched.
Tried: {files}
at: {mirrors}
Ways out:
  * DEBIAN_MIRROR=<base URL of a Debian archive mirror> (the folder that holds pool/)
  * put one of the files above into a folder and build with --distdir=<folder>
  * add a pin for a version that the mirror has, in third_party/deps.bzl
    (docs/build.md, "Updating a pin")
""".format(
        files = ", ".join(files),
        mirrors = ", ".join(mirrors) or "no mirror: apt names none, and DEBIAN_MIRROR is not set",
        package = package,
    )

def _debian_source_impl(rctx):
    package = rctx.attr.package
    mirrors = _mirrors(rctx)
    tried = []
    for encoded in rctx.attr.pins:
        pin = json.decode(encoded)
        file = "{}_{}.orig.{}".format(package, pin["version"], pin["format"])
        tried.append(file)
        path = "/%s/%s" % (_pool_folder(package), file)
        result = rctx.download(
            # Without any mirror Bazel still wants a URL, to look for its last part
            # in the --distdir folders.
            url = [m + path for m in mirrors] or ["file:///no-debian-mirror" + path],
            output = file,
            sha256 = pin["sha256"],
            allow_fail = True,
        )
        if not result.success:
            continue
        if len(tried) > 1:
            # buildifier: disable=print
            print("%s: using %s; not to be had: %s" % (package, file, ", ".join(tried[:-1])))
        rctx.extract(file, stripPrefix = pin["strip_prefix"])
        rctx.delete(file)
        break

    # A for loop has no else in Starlark: tell from the unpacked tree.
    if not result.success:
        fail(_help(package, tried, mirrors))

    for path in rctx.attr.delete:
        rctx.delete(path)
    if rctx.attr.build_file:
        # Upstream's BUILD.bazel would win over a file named BUILD.
        rctx.delete("BUILD.bazel")
        rctx.symlink(rctx.attr.build_file, "BUILD.bazel")
    for file, path in rctx.attr.extra_files.items():
        rctx.delete(path)
        rctx.symlink(file, path)
    rctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(rctx.name))

debian_source = repository_rule(
    implementation = _debian_source_impl,
    attrs = {
        "build_file": attr.label(
            allow_single_file = True,
            doc = "BUILD file laid over the sources; without it their own serve.",
        ),
        "delete": attr.string_list(
            doc = "Paths to remove, such as upstream's BUILD files of subfolders.",
        ),
        "extra_files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Further file of ours -> its path in the repository.",
        ),
        "package": attr.string(
            mandatory = True,
            doc = "Name of the source package.",
        ),
        "pins": attr.string_list(
            mandatory = True,
            allow_empty = False,
            doc = "Results of pin(), the preferred one first.",
        ),
    },
    environ = ["DEBIAN_MIRROR"],
)
