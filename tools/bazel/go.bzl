# SPDX-License-Identifier: Apache-2.0
"""Go programs, with the Go package."""

def go_program(name, src, out, module = None):
    """Vets and compiles a program of one file that uses the Go package.

    Args:
      name: the name of the rule.
      src: the source file.
      out: the program.
      module: the go.mod beside it; one is written where there is none.
    """
    sources = [src] + ([module] if module else [])
    native.genrule(
        name = name,
        testonly = True,
        srcs = sources + [
            "//api:headers",
            "//api:libshard.so.0",
            "//sdk/go:package",
        ],
        outs = [out],
        # Go follows no links to sources, which is what Bazel's sandbox has,
        # keeps its caches in folders of its own, and finds the library under
        # the name that -lshard looks for.
        cmd = """
            root="$$PWD"
            scratch="$$(mktemp -d)"
            trap 'chmod -R u+w "$$scratch"; rm -rf "$$scratch"' EXIT
            export GOCACHE="$$scratch/cache" GOPATH="$$scratch/path"
            export GOENV=off GOFLAGS= GOPROXY=off CGO_ENABLED=1
            export CGO_CFLAGS="-O2 -I$$root/api/include" CGO_LDFLAGS="-L$$scratch"
            ln -s "$$root/$(location //api:libshard.so.0)" "$$scratch/libshard.so"
            cp -L --parents $(locations //sdk/go:package) %s "$$scratch"
            cd "$$scratch/$$(dirname $(location %s))"
            [[ -e go.mod ]] || {
              go mod init program 2>/dev/null
              go mod edit -require=libshard/shard@v0.0.0 \\
                "-replace=libshard/shard=$$scratch/sdk/go"
            }
            go vet .
            go build -o "$$root/$@"
        """ % (" ".join(["$(location %s)" % source for source in sources]), src),
        executable = True,
        message = "Compiling Go:",
    )
