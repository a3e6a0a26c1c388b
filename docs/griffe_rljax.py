"""Extension of griffe: document environments, fields of configurations and of tuples, and names in prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

CONFIG = "rljax.core.config.Config"
TUPLES = ("NamedTuple", "PyTreeNode", "Module")
POSITIONAL = griffe.ParameterKind.positional_or_keyword
KEYWORD = griffe.ParameterKind.keyword_only


class Rljax(griffe.Extension):
    """For griffe, which reads the docstrings; nothing of rljax is imported."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Complete the tree of `rljax` once it is read."""
        if pkg.path != "rljax":
            return
        if "envs" not in pkg.members:
            add_environments(pkg, loader)
        exported = {str(name) for name in pkg.exports or ()}
        for thing in objects(pkg):
            if thing.is_class:
                add_fields(thing)
            if thing.docstring is not None:
                link_names(thing, exported)


def objects(tree: griffe.Object) -> Iterator[Any]:
    """All that is defined below `tree`, what is only imported there left out."""
    for member in list(tree.members.values()):
        if not member.is_alias:
            yield member
            yield from objects(member)


def add_environments(pkg: griffe.Module, loader: griffe.GriffeLoader) -> None:
    """`rljax.envs` lies beside the package's folder, not in it."""

    def read(name: str, path: Any, parent: griffe.Module) -> griffe.Module:
        module = griffe.visit(
            name,
            filepath=path,
            code=path.read_text(encoding="utf-8"),
            extensions=loader.extensions,
            parent=parent,
            docstring_parser=loader.docstring_parser,
            docstring_options=loader.docstring_options,
            lines_collection=loader.lines_collection,
            modules_collection=loader.modules_collection,
        )
        loader.lines_collection[path] = path.read_text(encoding="utf-8").splitlines()
        parent.set_member(name, module)
        return module

    def read_package(folder: Any, parent: griffe.Module) -> griffe.Module:
        package = read(folder.name, folder / "__init__.py", parent)
        for path in sorted(folder.iterdir()):
            if (path / "__init__.py").exists():
                read_package(path, package)
            elif path.suffix == ".py" and path.name != "__init__.py":
                read(path.stem, path, package)
        return package

    loader.expand_exports(read_package(pkg.filepath.parent.parent / "envs", pkg))


def add_fields(cls: griffe.Class) -> None:
    """A table of a configuration's fields, from the texts beside them; the signatures of tuples and environments."""
    bases = [cls, *cls.mro()]
    if any(base.path == CONFIG for base in bases):
        describe_fields(cls, bases)
        add_init(cls, [griffe.Parameter("fields", kind=griffe.ParameterKind.var_keyword)])
    elif is_tuple(cls, bases):
        fields: dict[str, Any] = {}
        for base in bases:  # as in a dataclass: a field stands where its first base has it, with the last default
            fields = own_fields(base) | fields
        parameters = [as_parameter(field) for field in fields.values()]
        add_init(cls, sorted(parameters, key=lambda parameter: parameter.kind is KEYWORD))
    elif cls.path.startswith("rljax.envs.") and "__init__" not in cls.inherited_members:
        add_init(cls, [])


def own_fields(cls: griffe.Class) -> dict[str, Any]:
    """The fields that a class declares itself, by name."""
    attributes = [m for m in cls.members.values() if m.is_attribute and m.annotation is not None and "property" not in m.labels]
    return {attribute.name: attribute for attribute in attributes}


def describe_fields(cls: griffe.Class, bases: list[griffe.Class]) -> None:
    """Add the table of a configuration's fields, its own before inherited ones; those of `Config` are only in its own table."""
    if cls.docstring is None:
        return
    described: dict[str, str] = {}
    for base in bases:
        for name, field in own_fields(base).items() if cls.path == CONFIG or base.path != CONFIG else ():
            kind = str(field.value.function) if isinstance(field.value, griffe.ExprCall) else None
            if kind in ("leaf", "static") and name not in described:
                given = {a.name: a.value for a in field.value.arguments}
                traced = "; may be traced" if kind == "leaf" else ""
                text = ast.literal_eval(str(given["doc"]))
                described[name] = f"    {name}: {text}. Default: `{default_of(given['default'], field)}`{traced}."
    if cls.path != CONFIG:
        of_algorithm = [d.value for d in cls.decorators if str(d.value).startswith("algorithm(")]
        listed = "".join(f"; `rljax list {ast.literal_eval(str(call.arguments[0]))}` prints all of them" for call in of_algorithm)
        cls.docstring.value += f"\n\nThe other fields are those of `Config`{listed}."
    if described:
        cls.docstring.value += "\n\nAttributes:\n" + "\n".join(described.values())


def default_of(value: Any, field: Any) -> str:
    """A default as it is written in a program: constants by their values, tables without their class."""
    if isinstance(value, griffe.ExprName) and value.name in field.module.members:
        return default_of(field.module[value.name].value, field)
    if isinstance(value, griffe.ExprCall) and str(value.function) == "FrozenDict":
        return str(value.arguments[0]) if value.arguments else "{}"
    return str(value)


def is_tuple(cls: griffe.Class, bases: list[griffe.Class]) -> bool:
    """Return whether the class has an `__init__` made of its fields: a NamedTuple, or flax's dataclasses, trees and modules."""
    of_base = any(str(base).split(".")[-1] in TUPLES for known in bases for base in known.bases)
    return of_base or any(str(decorator.value) == "struct.dataclass" for decorator in cls.decorators)


def as_parameter(field: Any) -> griffe.Parameter:
    """A field as it stands in the signature of its class; what declares it (`struct.field`, `statistics`, ...) is no default."""
    default = field.value
    if isinstance(default, griffe.ExprCall):
        path = default.function.canonical_path
        if path.endswith(".field") or path.startswith("rljax.core.state."):
            given = {a.name: a.value for a in default.arguments if isinstance(a, griffe.ExprKeyword)}
            default = given.get("default")
    kind = KEYWORD if str(field.parent.keywords.get("kw_only")) == "True" else POSITIONAL
    return griffe.Parameter(field.name, annotation=field.annotation, kind=kind, default=default)


def add_init(cls: griffe.Class, parameters: list[griffe.Parameter]) -> None:
    """Say what a class is made of. As its source the page shows that of `__init__`: here the whole class."""
    if "__init__" not in cls.members:
        signature = griffe.Parameters(griffe.Parameter("self", kind=POSITIONAL), *parameters)
        lines = {"lineno": cls.lineno, "endlineno": cls.endlineno}
        cls.set_member("__init__", griffe.Function("__init__", parameters=signature, parent=cls, **lines))


def link_names(thing: griffe.Object, exported: set[str]) -> None:
    """In a docstring, `name` becomes a link where rljax exports it."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[`{name}`][rljax.{name}]" if name in exported and name != thing.name else match[0]

    thing.docstring.value = re.sub(r"(?<![\[`])`(\w+)`(?![`\]])", link, thing.docstring.value)
