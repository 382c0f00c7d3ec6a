"""Keep the user's code that a spec names: uploaded bundles, packages of directories, functions by value, script commands."""
