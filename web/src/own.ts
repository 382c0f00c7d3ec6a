/**
 * Return the member of an object that has this name; undefined if the object has none or only inherits it. Users choose the names of
 * parameters, metrics and labels: one may be called "constructor".
 */
export function own<T>(object: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** Return an object that inherits nothing, with these members, so that a member may have any name, even "__proto__". */
export function bare<T>(members: Readonly<Record<string, T>> = {}): Record<string, T> {
  return Object.assign(Object.create(null) as Record<string, T>, members);
}
