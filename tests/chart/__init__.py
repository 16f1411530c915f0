"""The chart as Helm 3 and 4 render it, held to strict schemas and to what each template promises."""
